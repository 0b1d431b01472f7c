"""What several papers share: two models side by side, clustering, membership.

May import the core.
"""
