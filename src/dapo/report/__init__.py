"""The report: one HTML file about one or several runs, or a page on localhost that follows a run.

read        files of a run as they are, torn and missing ones included
curves      metrics over steps, binned where there are many; bands over seeds
panels      which curves stand where, and what each says
flow, credit, evaluations, settings, summary, rollouts, tokens     one part of the page each
data        all of it put together
page, live  the page as a file; the page as a server
"""
