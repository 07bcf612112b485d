"""Weightloom in other trainers: hooks for their own checkpoints.

- `weightloom.integrations.transformers`: a callback of `transformers.Trainer`.
- `weightloom.integrations.accelerate`: `Accelerator.save_state` and `load_state`.
- `weightloom.integrations.lightning`: a `CheckpointIO` of Lightning's Trainer and Fabric.
- `weightloom.integrations.torchtitan`: the checkpoint manager of torchtitan.
- `weightloom.integrations.dcp`: storage of `torch.distributed.checkpoint`.

Each needs its package, and nothing here is imported before it is asked for.
"""
