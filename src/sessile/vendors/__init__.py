"""Everything that talks to model vendors: clients, answers, model data, summarizers."""
