// Command layers shows how the files of packages depend on each other:
//
//	go run ./cmd/internal/layers ./http ./http/edge
//
// A file refers to another of its package if it uses something declared there. Files are put
// in the order in which the fewest references point up, from a file to one above it; those
// are listed. A package without cycles between its files has none. Tests are left out.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	for _, dir := range os.Args[1:] {
		g, err := read(context.Background(), dir) //nolint:forbidigo // there is no caller
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		all, up := g.layers()
		fmt.Printf("%s: %d files, %d references, %d upward\n", dir, len(g), all, len(up))
		for _, r := range up {
			fmt.Printf("  %s uses %s: %s\n", r.from, r.to, strings.Join(slices.Sorted(slices.Values(g[r.from][r.to])), ", "))
		}
	}
}

// graph holds, for each file, the files that it refers to and the names that it uses there.
type graph map[string]map[string][]string

// read returns the graph of the package in dir.
func read(ctx context.Context, dir string) (graph, error) {
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		DepOnly                 bool
	}
	list := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", dir) //nolint:gosec // a developer names the package
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", dir, err)
	}
	exports := map[string]string{}
	var target listed
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		if exports[p.ImportPath] = p.Export; !p.DepOnly {
			target = p
		}
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range target.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(target.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	pkg, err := conf.Check(target.ImportPath, fset, files, info)
	if err != nil {
		return nil, err
	}
	g := graph{}
	for _, name := range target.GoFiles {
		g[name] = map[string][]string{}
	}
	for id, obj := range info.Uses {
		if obj.Pkg() != pkg || !obj.Pos().IsValid() {
			continue
		}
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(obj.Pos()).Filename)
		if from != to && !slices.Contains(g[from][to], obj.Name()) {
			g[from][to] = append(g[from][to], obj.Name())
		}
	}
	return g, nil
}

type reference struct{ from, to string }

// layers counts the references between files, and returns those that point up in a good
// order (P. Eades, X. Lin, W. F. Smyth: A fast and effective heuristic for the feedback arc
// set problem, 1993).
func (g graph) layers() (all int, up []reference) {
	left := map[string]bool{}
	for f, to := range g {
		left[f] = true
		all += len(to)
	}
	degree := func(f string) (out, in int) {
		for other := range left {
			if other == f {
				continue
			}
			if g[f][other] != nil {
				out++
			}
			if g[other][f] != nil {
				in++
			}
		}
		return out, in
	}
	var top, bottom []string
	for len(left) > 0 {
		names := make([]string, 0, len(left))
		for f := range left {
			names = append(names, f)
		}
		slices.Sort(names)
		best, most, sink := "", -1<<30, false
		for _, f := range names {
			out, in := degree(f)
			if out == 0 {
				best, sink = f, true
				break
			}
			if in == 0 {
				out = 1 << 20 // a source
			}
			if out-in > most {
				best, most = f, out-in
			}
		}
		if delete(left, best); sink {
			bottom = append(bottom, best)
		} else {
			top = append(top, best)
		}
	}
	slices.Reverse(bottom)
	order := map[string]int{}
	for i, f := range append(top, bottom...) {
		order[f] = i
	}
	for from, uses := range g {
		for to := range uses {
			if order[to] < order[from] {
				up = append(up, reference{from, to})
			}
		}
	}
	slices.SortFunc(up, func(a, b reference) int { return strings.Compare(a.from+" "+a.to, b.from+" "+b.to) })
	return all, up
}
