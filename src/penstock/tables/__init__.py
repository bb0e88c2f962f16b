"""Rows of tables: columns of Arrow gathered for whole batches."""
