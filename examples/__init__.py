"""All of adsum at once, without a GPU: a simulated worker, the demos, pictures of the dashboards."""
