package probe

// The tools are pinned: another clang makes another object.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux storage storage.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type event -type gate -type gate_key events events.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type record -type group -type group_key -type totals trace trace.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type thread -type sums account account.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
