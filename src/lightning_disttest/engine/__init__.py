"""The process roles of a run: controller, zygote and ranks. Nothing here knows Lightning."""
