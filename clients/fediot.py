"""FedIoT, client half: local epochs as FedAvg's.

Paper: Zhao, Barnaghi, Haddadi, IoTDI 2022, arXiv 2109.04833. What is its own is the server's average.
"""

from flwr.clientapp import ClientApp

from clients import fedavg

app = ClientApp()
app.train()(fedavg.train)
app.evaluate()(fedavg.test)
