"""The job with Flower's simulation: its FedAvg, one Ray actor with one thread on each core, no evaluation."""

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import peer_job
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

JOB = peer_job.JOB
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message, context):
    model = peer_job.net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = peer_job.rows(int(context.node_config["partition-id"]))
    peer_job.train(model, x, y)
    told = MetricRecord({"num-examples": len(x), "worker": os.getpid()})
    return Message(content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told}), reply_to=message)


class Turns(FedAvg):
    def configure_train(self, *args):
        peer_job.begin("flwr")
        return super().configure_train(*args)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        if any(reply.has_error() for reply in replies):
            os._exit(1)  # a round in which a client failed is no measurement
        self.noted = {
            "clients": len(replies),
            "workers": len({reply.content["metrics"]["worker"] for reply in replies}),
        }
        return super().aggregate_train(server_round, replies)

    def configure_evaluate(self, *args):
        peer_job.end(**self.noted)
        return super().configure_evaluate(*args)


@server_app.main()
def main(grid, context):
    share = JOB["cohort"] / JOB["clients"]
    strategy = Turns(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=JOB["clients"])
    strategy.start(grid, ArrayRecord(peer_job.net().state_dict()), num_rounds=JOB["rounds"])


if __name__ == "__main__":
    actors = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"include_dashboard": False}}
    run_simulation(server_app, client_app, JOB["clients"], backend_config=actors)
