// Gospin computes for ever, three quarters of the time in hot and one in
// cool. It prints where they are first.
package main

import (
	"fmt"
	"os"
	"reflect"
)

var sink uint64

//go:noinline
func hot(n uint64) {
	for i := range n {
		sink += i * i
	}
}

//go:noinline
func cool(n uint64) {
	for i := range n {
		sink += i * i
	}
}

//go:noinline
func work() {
	hot(300000)
	cool(100000)
}

func main() {
	fmt.Printf("%#x %#x\n", reflect.ValueOf(hot).Pointer(), reflect.ValueOf(cool).Pointer())
	if len(os.Args) > 1 { // wait
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	for {
		work()
	}
}
