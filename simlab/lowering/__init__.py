"""Program and plan → what each rank computes, sends and waits for."""
