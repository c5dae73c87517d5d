package docs_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
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

// goList lists takt's packages once for all tests.
var goList = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("go", "list", "-json=ImportPath,Imports,Deps,Standard,GoFiles,Dir,Doc", "takt/...").Output()
})

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	out, err := goList()
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

// subsystem reports whether path is a subsystem of the tree. They never import each
// other; what they share are otp, pubsub and settings.
func subsystem(path string) bool {
	name, ok := strings.CutPrefix(path, "takt/actors/")
	return ok && !strings.Contains(name, "/") && !slices.Contains([]string{"otp", "pubsub", "settings"}, name)
}

// TestImportDirection checks, transitively, that imports point one way:
// cmd → http, actors → store.
func TestImportDirection(t *testing.T) {
	t.Parallel()
	forbidden := func(pkg string) []string {
		switch {
		case pkg == "takt/cmd/takt-bench", pkg == "takt/cmd/takt-drill": // they write SQL beside takt
			return []string{"takt/actors", "takt/store/postgres"}
		case pkg == "takt/cmd/internal/gotest": // it starts a PostgreSQL for tests
			return []string{"takt/actors", "takt/http"}
		case slices.Contains([]string{"command", "settings", "serving", "upkeep", "doctor", "otlp", "takttest"}, strings.TrimPrefix(pkg, "takt/cmd/internal/")): // the controller's own
			return nil
		case pkg == "takt/cmd/internal/fleet": // a worker sends traces as a controller does
			return []string{"takt/store/postgres", "takt/actors/queue", "github.com/labstack/echo"}
		case pkg == "takt/http/client" || pkg == "takt/cmd/takt-demo" || pkg == "takt/cmd/takt-attack" || under(pkg, "takt/cmd/internal"):
			return []string{"takt/actors", "takt/store/postgres", "github.com/jackc/pgx", "github.com/labstack/echo"}
		case pkg == "takt/http/api":
			return []string{"takt/http", "takt/actors", "takt/store/postgres", "github.com/labstack/echo"}
		case pkg == "takt/http/edge":
			return []string{"takt/http", "takt/actors", "takt/storage", "takt/store/postgres", "github.com/jackc/pgx", "github.com/asynkron"}
		case pkg == "takt/http":
			return []string{"takt/http/dashboard", "takt/actors", "takt/store/postgres", "github.com/jackc/pgx", "github.com/asynkron"}
		case pkg == "takt/http/dashboard":
			return []string{"takt/http/client", "takt/actors", "takt/store/postgres", "github.com/jackc/pgx", "github.com/asynkron"}
		case under(pkg, "takt/actors/otp"):
			return []string{"takt/store", "takt/storage", "takt/http"}
		case under(pkg, "takt/actors"):
			return []string{"takt/http", "takt/store/postgres", "github.com/labstack/echo"}
		case pkg == "takt/store":
			return []string{"takt/", "github.com/", "golang.org/", "go.uber.org/"}
		case pkg == "takt/store/hubspot":
			return []string{"takt/http", "takt/actors", "takt/store/postgres", "github.com/"}
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
			if subsystem(p.ImportPath) && subsystem(dep) {
				t.Errorf("%s depends on its sibling %s", p.ImportPath, dep)
			}
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "github.com/asynkron/protoactor-go") {
				require.Equal(t, "takt/actors/otp", p.ImportPath, "only actors/otp knows protoactor")
			}
		}
	}
}

// TestProductIsTheProduct checks that bin/takt links no stand-in, no helper of tests,
// no demo and no benchmark.
func TestProductIsTheProduct(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		if p.ImportPath != "takt/cmd/takt" {
			continue
		}
		require.Contains(t, p.Deps, "takt/actors")
		for _, dep := range p.Deps {
			switch {
			case under(dep, "takt") && strings.HasSuffix(dep, "test"), under(dep, "takt/store/storetest"), strings.HasPrefix(dep, "takt/cmd/takt-"),
				slices.Contains([]string{"takt/cmd/internal/load", "takt/cmd/internal/process", "net/http/httptest"}, dep),
				under(dep, "github.com/stretchr/testify"):
				t.Errorf("bin/takt links %s", dep)
			}
		}
		return
	}
	t.Fatal("no takt/cmd/takt")
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
