"""The job with pfl: FederatedAveraging on its simulated backend, in one process, evaluated in the first round only."""

import torch
import torch.nn.functional as F
from peer_job import JOB, begin, end, net, rows
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def loss(self, x, y):
        self.train()
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        self.eval()
        return {"loss": Weighted(float(F.cross_entropy(self.net(x), y, reduction="sum")), len(y))}


class Turns(TrainingProcessCallback):
    def on_train_begin(self, *, model):
        begin("pfl")
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        end(clients=len(visited))
        visited.clear()
        if central_iteration + 1 < JOB["rounds"]:
            begin("pfl")
        return False, Metrics()


users = list(range(JOB["clients"]))
datasets = {user: PyTorchTensorDataset(rows(user), user_id=str(user)) for user in users}
visited = []  # users of this round


def dataset(user):
    visited.append(user)
    return datasets[user]


data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", users))
module = Model()
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=JOB["rounds"],
        evaluation_frequency=1_000_000,
        train_cohort_size=JOB["cohort"],
        val_cohort_size=0,
    ),
    SimulatedBackend(data, None),
    model,
    NNTrainHyperParams(local_batch_size=JOB["batch"], local_num_epochs=1, local_learning_rate=JOB["lr"]),
    NNEvalHyperParams(local_batch_size=None),
    [Turns()],
)
