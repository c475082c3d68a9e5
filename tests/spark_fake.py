"""A stand-in for Spark's context in one process: what jobs need of it, and executors that can be lost.

Functions and elements are pickled on their way, as Spark does it; blocks of kept RDDs are where their executor is, and
destroyed broadcasts cannot be read or named.
"""

import shutil
import urllib.parse
from functools import reduce
from pathlib import Path

from pyspark import cloudpickle

_broadcasts = {}


def _of_number(number):
    return _broadcasts[number]


class FakeBroadcast:
    def __init__(self, number, value):
        self.number, self._frozen = number, cloudpickle.dumps(value)
        _broadcasts[number] = self

    @property
    def value(self):
        return cloudpickle.loads(self._frozen)

    def destroy(self):
        del _broadcasts[self.number]

    def __reduce__(self):
        assert self.number in _broadcasts, "named after it was destroyed"
        return _of_number, (self.number,)


class FakeRDD:
    def __init__(self, context, parents, function, partitions):
        self.context, self.parents, self.partitions = context, parents, partitions
        self.function = cloudpickle.dumps(function)
        self.kept, self.blocks, self.file, self.wanted_file = False, {}, None, False

    def mapPartitions(self, function):
        return self.mapPartitionsWithIndex(_Indexless(function))

    def mapPartitionsWithIndex(self, function):
        return FakeRDD(self.context, [self], function, self.partitions)

    def persist(self, level):
        self.kept = True
        self.context.kept.add(self)
        return self

    def unpersist(self):
        self.kept, self.blocks = False, {}
        self.context.kept.discard(self)
        return self

    def checkpoint(self):
        assert not self.blocks, "a job has been run on it"
        self.wanted_file = True

    def getCheckpointFile(self):
        return self.file and self.file.as_uri()

    def partition(self, index):
        if index in self.blocks:
            return cloudpickle.loads(self.blocks[index])
        self.context.computed += 1
        if self.file is not None:
            result = cloudpickle.loads((self.file / f"part-{index:05d}").read_bytes())
        elif isinstance(cloudpickle.loads(self.function), _Union):
            parent, own = [(p, i) for p in self.parents for i in range(p.partitions)][index]
            result = parent.partition(own)
        else:
            elements = iter(self.parents[0].partition(index)) if self.parents else iter(())
            result = list(cloudpickle.loads(self.function)(index, elements))
            assert next(elements, None) is None, "a task left elements unread"
        if self.kept:
            self.blocks[index] = cloudpickle.dumps(result)
        return cloudpickle.loads(cloudpickle.dumps(result))

    def lineage(self):
        """RDDs down to what was written to a file."""
        return 1 + (0 if self.file else max((parent.lineage() for parent in self.parents), default=0))

    def named(self):
        """All functions down to there, which go with each task."""
        yield self.function
        if not self.file:
            for parent in self.parents:
                yield from parent.named()

    def collect(self):
        self.context.jobs += 1
        self.context.deepest = max(self.context.deepest, self.lineage())
        for function in self.named():
            cloudpickle.loads(function)  # fails where a destroyed broadcast is named
        result = [element for index in range(self.partitions) for element in self.partition(index)]
        self.write()
        return result

    def write(self):
        """What was asked for by ``checkpoint``, as Spark does after the first job."""
        if self.wanted_file and self.file is None:
            file = self.context.checkpoints / f"rdd-{id(self)}"
            file.mkdir(parents=True)
            for index in range(self.partitions):
                (file / f"part-{index:05d}").write_bytes(cloudpickle.dumps(self.partition(index)))
            self.file = file
            self.parents = []
        for parent in self.parents:
            parent.write()

    def treeReduce(self, function):
        return reduce(function, self.collect())


class _Indexless:
    def __init__(self, function):
        self.function = function

    def __call__(self, index, elements):
        return self.function(elements)


class _Union:
    pass


class FakeContext:
    def __init__(self, local):
        self.local, self.kept = Path(local), set()
        self.jobs = self.computed = self.deepest = self._sent = 0
        _broadcasts.clear()

    def setCheckpointDir(self, address):
        self.checkpoints = Path(urllib.parse.urlparse(address).path) / "uuid"

    def broadcast(self, value):
        self._sent += 1
        return FakeBroadcast(self._sent, value)

    def parallelize(self, values, partitions):
        values = list(values)
        assert len(values) == partitions
        source = FakeRDD(self, [], None, partitions)
        source.blocks = {index: cloudpickle.dumps([value]) for index, value in enumerate(values)}
        return source

    def union(self, rdds):
        return FakeRDD(self, list(rdds), _Union(), sum(rdd.partitions for rdd in rdds))

    @property
    def alive(self):
        """Broadcasts that are held."""
        return len(_broadcasts)

    def lose_executor(self):
        """All blocks and files of executors are gone."""
        for rdd in self.kept:
            rdd.blocks = {}
        shutil.rmtree(self.local, ignore_errors=True)
        self.local.mkdir()
