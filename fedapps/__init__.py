"""fedapps: federated learning for participants that differ in data, modality, model and task."""
