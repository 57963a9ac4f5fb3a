"""Sessions and jobs on the driver: Java, executors, progress and interrupts."""
