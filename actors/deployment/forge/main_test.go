package forge_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"takt/http/githubtest"
)

// template is a bare repository that all tests copy from.
var template string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "takt-forge-")
	if err == nil && !testing.Short() { // it takes git
		template, err = githubtest.Template(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}
