#!/bin/sh
# One plan on several nodes: run this on each of them, with everything after the name handed on to python -m realrun.
#
#   node 0:  NODE=0 FIRST=10.0.0.1 INTERFACE=eth0 sh assets/launch/nodes.sh --dp 2 --tp 2 --microbatches 4 --steps 20
#   node 1:  NODE=1 FIRST=10.0.0.1 INTERFACE=eth0 sh assets/launch/nodes.sh --dp 2 --tp 2 --microbatches 4 --steps 20
#
# Ranks fill one node after the other, so what varies fastest (--order, by default tp) stays within a node.
# Rank 0, on node 0, writes the report. Whoever reaches PORT of node 0 can join: a trusted network only.
: "${NODE:?which of the nodes this is: 0, 1, ...}"
: "${FIRST:?the address of node 0, as the others reach it}"
: "${INTERFACE:?the network interface between the nodes, the same name on all; ip route shows it}"
export GLOO_SOCKET_IFNAME="$INTERFACE" NCCL_SOCKET_IFNAME="$INTERFACE" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "${PYTHON:-python3}" -m torch.distributed.run --nnodes "${NODES:-2}" --node-rank "$NODE" --nproc-per-node "${RANKS:-2}" \
  --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
  --master-addr "$FIRST" --master-port "${PORT:-29400}" -m "${MODULE:-realrun}" "$@"
