"""What a run is made of: lanes and their registers, memory, barriers, tensor maps, what an access costs."""
