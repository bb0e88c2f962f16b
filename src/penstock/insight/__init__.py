"""What observers wrote, read: diagnosis, machine checks, recordings, traces, reports and views."""
