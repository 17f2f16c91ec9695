package probe

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel process process.bpf.c -- -O2 -Wall -Werror -I../../../bpfload/headers
