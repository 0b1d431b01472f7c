"""The federations that published tables were measured on, made from pools.

`fedem`: CIFAR-10/100, EMNIST and FEMNIST as FedEM and FedMN divide them. `pfedmb`: two classes, Dirichlet, twenty
classes and pairs. `modfl`: balanced cyclic groups of labels. `camera`: images as another camera would have taken them.
"""
