// Command etcd is the real etcd, with its own flags, for tests of etcd's clients.
// It ends when its standard input ends, so that it never outlives the test that
// started it.
package main

import (
	"io"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	etcdmain.Main(os.Args)
}
