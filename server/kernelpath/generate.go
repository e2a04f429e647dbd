package kernelpath

// The object is built with Debian's clang and committed. TestObject rebuilds it to
// check it against the sources.
//
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -cflags "-O2 -mcpu=v3 -Wall -Werror" -type key -type slot -type set -type state -type door -type client_state -type client_count -type bucket -type sender -type prefix -type sample -type bypass -type result -type bound -type variant program bpf/answer.c
