"""SMoE layers on lines, volumes, spheres and graphs."""
