package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goPackage is what `go list -json` says of one package.
type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
	GoFiles    []string
	Dir        string
	Doc        string
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps,Standard,GoFiles,Dir,Doc", "takt/...")
	out, err := cmd.Output()
	if ee, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("go list: %s", ee.Stderr)
	}
	require.NoError(t, err)
	var pkgs []goPackage
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		}
		require.NoError(t, err)
		pkgs = append(pkgs, p)
	}
}

// under reports whether path is pkg or lies below it.
func under(path, pkg string) bool { return path == pkg || strings.HasPrefix(path, pkg+"/") }

// TestImportDirection checks, transitively, that imports point one way:
// cmd → http, actors → store.
func TestImportDirection(t *testing.T) {
	t.Parallel()
	subsystems := []string{"takt/actors/queue", "takt/actors/deployment", "takt/actors/repo", "takt/actors/request", "takt/actors/telemetry", "takt/actors/pubsub", "takt/actors/janitor", "takt/actors/throttle"}
	forbidden := func(pkg string) []string {
		switch {
		case pkg == "takt/cmd/internal/bench": // its naive peers serve and write rows
			return []string{"takt/actors", "takt/store/postgres"}
		case pkg == "takt/http/client" || under(pkg, "takt/cmd/internal"):
			return []string{"takt/actors", "takt/store/postgres", "github.com/jackc/pgx", "github.com/labstack/echo"}
		case pkg == "takt/http/api":
			return []string{"takt/http", "takt/actors", "takt/store/postgres", "github.com/labstack/echo"}
		case pkg == "takt/http":
			return []string{"takt/actors", "takt/store/postgres", "github.com/jackc/pgx", "github.com/asynkron"}
		case pkg == "takt/http/hubspot" || pkg == "takt/actors/throttle/hubspot":
			return []string{"takt/http", "takt/actors", "takt/store/postgres", "github.com/"}
		case under(pkg, "takt/actors/otp"):
			return []string{"takt/store", "takt/storage", "takt/http"}
		case under(pkg, "takt/actors"):
			return []string{"takt/http", "takt/store/postgres", "github.com/labstack/echo"}
		case under(pkg, "takt/actors/throttle/hubspot"):
			return []string{"takt/http", "takt/actors", "takt/store/postgres", "github.com/"}
		case pkg == "takt/store":
			return []string{"takt/", "github.com/", "golang.org/", "go.uber.org/"}
		case pkg == "takt/store/storetest":
			return []string{"takt/http"}
		case under(pkg, "takt/store") || under(pkg, "takt/storage") || under(pkg, "takt/migrations"):
			return []string{"takt/http", "takt/actors"}
		}
		return nil
	}
	for _, p := range listPackages(t) {
		for _, dep := range p.Deps {
			for _, bad := range forbidden(p.ImportPath) {
				if under(dep, strings.TrimSuffix(bad, "/")) && !under(dep, p.ImportPath) && !strings.HasPrefix(dep, "takt/http/api") {
					t.Errorf("%s depends on %s", p.ImportPath, dep)
				}
			}
			// Subsystems never import each other; pubsub is the one that they share.
			for _, a := range subsystems {
				for _, b := range subsystems {
					if a != b && b != "takt/actors/pubsub" && p.ImportPath == a && dep == b {
						t.Errorf("%s depends on its sibling %s", a, b)
					}
				}
			}
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "github.com/asynkron/protoactor-go") {
				require.Equal(t, "takt/actors/otp", p.ImportPath, "only actors/otp knows protoactor")
			}
		}
	}
}

// TestOnePackageComment checks that every package says what it is, once, with
// its state, failure and concurrency.
func TestOnePackageComment(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		require.NotEmpty(t, p.Doc, "%s has no package comment", p.ImportPath)
	}
}
