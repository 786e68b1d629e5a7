"""What a worker's tries read and write: inputs, a folder for outputs, a disk that is full, one that is read-only."""

import os
import subprocess


class Files:
    """Inputs and folders of a worker; made once."""

    def __init__(self, work, program, self_program, mounts):
        self.work, self.program, self.self_program, self.mounts = work, program, self_program, mounts
        self.out = self.folder("out")
        self.full = self.folder("full")
        self.read_only = self.folder("read-only")
        self.temporary = self.folder("tmp")
        if mounts:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "torture", self.full], check=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "torture", self.read_only], check=True)
            subprocess.run(["mount", "-o", "remount,ro", self.read_only], check=True)
        else:
            os.chmod(self.read_only, 0o555)
        self.big = self.profile("big.folded", 30000, 1)
        self.other = self.profile("other.folded", 30000, 2)
        self.runs = self.folder("runs")
        for side in ("base", "new"):
            os.makedirs(os.path.join(self.runs, side), exist_ok=True)
            for index in range(5):
                self.profile(f"runs/{side}/{index}.folded", 800, index + (side == "new") * 10)
        self.kept = os.path.join(work, "kept")
        subprocess.run([program, "gate", "-q", "--new", f"{self.runs}/base", "--update-baseline", self.kept], check=True)

    def folder(self, name):
        path = os.path.join(self.work, name)
        os.makedirs(path, exist_ok=True)
        return path

    def profile(self, name, lines, seed):
        path = os.path.join(self.work, name)
        value = seed
        with open(path, "w", encoding="ascii") as file:
            for _ in range(lines):
                frames = ["main"]
                for _ in range(8):
                    value = (value * 1103515245 + 12345) & 0x7FFFFFFF
                    frames.append(f"function_{value >> 20}")
                file.write(";".join(frames) + f" {value % 9 + 1}\n")
        return path

    def unmount(self):
        if self.mounts:
            for path in (self.full, self.read_only):
                subprocess.run(["umount", "-l", path], check=False)


def remove_all(folder):
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            remove_all(path)
            os.rmdir(path)
        else:
            os.unlink(path)
