"""Three nodes on loopback with many groups: start, processor and memory without a request, and the
longest time in which some group takes no write when a node is killed or ends.

    python3 tools/kvd/benches/groups.py target/release/kvd --groups 1 16 256
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time

NODES = (1, 2, 3)


class Cluster:
    def __init__(self, program, groups, directory):
        self.program, self.groups, self.directory, self.nodes = program, groups, directory, {}
        begun = time.time()
        for node in NODES:
            self.start(node)
        self.wait(lambda: all(self.status(node) for node in NODES))
        self.started = time.time() - begun
        members = [f"--member={node}={self.raft(node)},127.0.0.1:{self.port(node)}" for node in NODES[1:]]
        subprocess.run([program, "init", f"--node={self.raft(1)}", *members], check=True, stdout=subprocess.DEVNULL)
        self.led = self.wait_led() - begun

    def raft(self, node):
        return f"127.0.0.1:{17300 + node}"

    def port(self, node):
        return 17400 + node

    def start(self, node):
        arguments = [f"--id={node}", f"--dir={self.directory}/{node}", f"--raft={self.raft(node)}"]
        arguments += [f"--resp=127.0.0.1:{self.port(node)}", f"--groups={self.groups}"]
        with open(f"{self.directory}/log", "a") as log:
            self.nodes[node] = subprocess.Popen([self.program, *arguments], stderr=log)

    def status(self, node):
        report = subprocess.run([self.program, "status", "--json", f"--node={self.raft(node)}"], capture_output=True)
        return json.loads(report.stdout)["groups"] if report.returncode == 0 else None

    def wait(self, holds):
        while not holds():
            time.sleep(0.02)

    def leaders(self):
        """How many groups each node leads."""
        reports = {node: self.status(node) or [] for node in self.nodes}
        return {node: sum(group["role"] == "leader" for group in groups) for node, groups in reports.items()}

    def wait_led(self):
        self.wait(lambda: sum(self.leaders().values()) == self.groups)
        return time.time()

    def seconds(self, node):
        fields = open(f"/proc/{self.nodes[node].pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self, node):
        lines = open(f"/proc/{self.nodes[node].pid}/status").read().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))

    def end(self):
        for node in self.nodes.values():
            node.kill()
            node.wait()


class Writer(threading.Thread):
    """Sets one key again and again, wherever the leader of its group is."""

    def __init__(self, cluster, number):
        super().__init__(daemon=True)
        self.cluster, self.key, self.gap, self.last = cluster, f"key{number}", 0.0, time.time()

    def run(self):
        node, open_to = NODES[0], None
        request = f"*3\r\n$3\r\nSET\r\n${len(self.key)}\r\n{self.key}\r\n$1\r\nx\r\n".encode()
        while True:
            try:
                open_to = open_to or socket.create_connection(("127.0.0.1", self.cluster.port(node)), timeout=2)
                open_to.sendall(request)
                answer = open_to.recv(4096)
                if answer == b"+OK\r\n":
                    now = time.time()
                    self.gap, self.last = max(self.gap, now - self.last), now
                    time.sleep(0.004)
                    continue
                moved = answer.startswith(b"-MOVED")
                node = int(answer.split()[2].rsplit(b":", 1)[1]) - 17400 if moved else node % 3 + 1
            except OSError:
                node = node % 3 + 1
            if open_to:
                open_to.close()
            open_to = None
            time.sleep(0.004)

    def take(self):
        gap, self.gap = max(self.gap, time.time() - self.last), 0.0
        return gap * 1000


def measure_gaps(cluster, kind, rounds):
    writers = [Writer(cluster, number) for number in range(min(cluster.groups, 16))]
    for writer in writers:
        writer.start()
    time.sleep(2)
    gaps = []
    for _ in range(rounds):
        leaders = cluster.leaders()
        node = max(leaders, key=leaders.get)
        for writer in writers:
            writer.take()
        cluster.nodes[node].send_signal(kind)
        cluster.nodes.pop(node).wait()
        time.sleep(3)
        gaps.append((round(max(writer.take() for writer in writers)), leaders[node]))
        cluster.start(node)
        cluster.wait(lambda: cluster.status(node))
        cluster.wait_led()
        time.sleep(2)
    gaps.sort()
    print(f"  {kind.name}: longest ms without a write in some group, groups led:", *gaps, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--seconds", type=float, default=60, help="of each idle measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of kills and of SIGTERM each; 0: none")
    arguments = parser.parse_args()
    for groups in arguments.groups:
        with tempfile.TemporaryDirectory() as directory:
            cluster = Cluster(arguments.program, groups, directory)
            try:
                print(f"{groups} groups: nodes answer after {cluster.started:.2f} s, groups are led after {cluster.led:.2f} s")
                time.sleep(3)
                before = [cluster.seconds(node) for node in NODES]
                time.sleep(arguments.seconds)
                cores = [(cluster.seconds(node) - of) / arguments.seconds for node, of in zip(NODES, before)]
                memory = [cluster.megabytes(node) for node in NODES]
                print("  idle: cores", *(f"{of:.4f}" for of in cores), "MB", *memory, flush=True)
                if arguments.rounds:
                    measure_gaps(cluster, signal.SIGKILL, arguments.rounds)
                    measure_gaps(cluster, signal.SIGTERM, arguments.rounds)
            finally:
                cluster.end()


if __name__ == "__main__":
    main()
