"""From an opened source to artifacts on disk, route `package` (design.md, section 5: pipeline.build_bundle)."""
