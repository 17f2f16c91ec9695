package probe

// The tools are pinned: another clang makes another object.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux process process.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux profile profile.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type event events events.bpf.c -- -mcpu=v3 -Wall -Werror -I../../../bpfload/headers
