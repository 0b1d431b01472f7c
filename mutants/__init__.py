"""Plants small bugs in the package and asks whether its tests notice: `make mutants`."""
