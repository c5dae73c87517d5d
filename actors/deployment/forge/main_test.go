package forge_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"takt/http/githubtest"
)

// template is a bare repository that all tests copy from.
var template string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "takt-forge-")
	if _, missing := exec.LookPath("git"); err == nil && missing == nil {
		template, err = githubtest.Template(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { _ = os.RemoveAll(dir); os.Exit(code) }))
}
