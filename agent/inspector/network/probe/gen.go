package probe

// The tools are pinned: another clang makes another object.
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type run network bpf/network.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type group -type tally -type rest_key -type sample -type place dropsTask bpf/drops_trace.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type group -type tally -type sample retransmitsTask bpf/retransmits_trace.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type group -type tally -type sample -type standing connectionsTask bpf/connections_trace.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type group -type tally -type sample trafficTask bpf/traffic_trace.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
