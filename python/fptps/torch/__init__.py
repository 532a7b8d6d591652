"""What fptps has for PyTorch. Nothing here is imported by `import fptps`, which does not need PyTorch."""
