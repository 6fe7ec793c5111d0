"""Everything that talks to model vendors: clients, models, prices and summarizers."""
