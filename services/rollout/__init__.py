"""The rollout worker: turns prompts into scored groups with the engine it sits beside."""
