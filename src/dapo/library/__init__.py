"""The library: what `import dapo` offers beside configuration, types and errors. Each file is loaded on first use."""
