"""The tutorial's dataset, unchanged: one file of a tensor for each sample's ID."""

import torch


class Dataset(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Characterizes a dataset for PyTorch."""

    def __init__(self, list_IDs: list[str], labels: dict[str, int]) -> None:
        """Initialization"""
        self.labels = labels
        self.list_IDs = list_IDs

    def __len__(self) -> int:
        """Denotes the total number of samples"""
        return len(self.list_IDs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Generates one sample of data"""
        # Select sample
        ID = self.list_IDs[index]

        # Load data and get label
        X = torch.load("data/" + ID + ".pt")
        y = self.labels[ID]

        return X, y
