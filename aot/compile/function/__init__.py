"""The route `function`: one graph that Dynamo takes from `forward`, compiled ahead of time with Dynamo's own guards.

For programs that torch.export does not take and that are one graph all the same. What a pod loads holds pickles and
bytecode, so it is tied to one Python and one torch; it imports Dynamo and Inductor, and starts slower than a package.
"""
