"""The workshop: experiments and measurements that are run from a checkout."""
