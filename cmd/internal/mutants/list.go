package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const listFile = "testdata/mutants.txt"

// mutant is a fault in a mechanism that a promise stands on, and the test that finds it.
type mutant struct {
	name, promise string
	keeps         string // one of the ten promises of docs/promises.md, or ""
	pkg, tests    string // directory, and the pattern for go test -run
	changes       []change
	files         map[string]string // what load made of them: the changed files by their names
	key           string            // stays while the mutant and its tests do; set by news
}

// change is made in the function, method, type, constant or variable called decl of the
// package in directory dir.
type change struct{ dir, decl, kind, what, with string }

func (c change) String() string {
	if c.with != "" {
		c.what += arrow + c.with
	}
	return fmt.Sprintf("%s.%s: %s: %s", c.dir, c.decl, c.kind, c.what)
}

const arrow = " => "

var (
	testPattern = regexp.MustCompile(`^([A-Za-z0-9_|]+)(/\S.*)?$`)
	declaration = regexp.MustCompile(`^([\w/-]+)\.(\w+(?:\.\w+)?)$`)
	testName    = regexp.MustCompile(`\bTest\w+`)
)

// parse reads a list of mutants; testdata/mutants.txt says how one is written.
func parse(text string) (list []*mutant, err error) {
	var m *mutant
	var in []string
	for i, line := range strings.Split(text, "\n") {
		key, value, ok := strings.Cut(line, ": ")
		_, become := kind(key)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case key == "mutant" && ok:
			m, in = &mutant{name: value}, nil
			list = append(list, m)
		case m == nil:
			return nil, fmt.Errorf("line %d: no mutant begins here", i+1)
		case key == "promise" && ok:
			m.promise = value
		case key == "keeps" && ok:
			m.keeps = value
		case key == "test" && ok:
			m.pkg, m.tests, _ = strings.Cut(value, " ")
			parts := testPattern.FindStringSubmatch(m.tests)
			if parts == nil {
				return nil, fmt.Errorf("line %d: want PACKAGE TestName", i+1)
			}
			m.tests = "^(" + parts[1] + ")$" + parts[2]
		case key == "in" && ok:
			if in = declaration.FindStringSubmatch(value); in == nil {
				return nil, fmt.Errorf("line %d: want PACKAGE.NAME or PACKAGE.TYPE.METHOD", i+1)
			}
		case become != nil && in != nil:
			what, with, _ := strings.Cut(value, arrow)
			m.changes = append(m.changes, change{in[1], in[2], key, what, with})
		default:
			return nil, fmt.Errorf("line %d: unknown, or nothing said where: %s", i+1, line)
		}
	}
	for _, m := range list {
		if m.promise == "" || m.tests == "" || len(m.changes) == 0 {
			return nil, errors.New(m.name + ": a promise, a test and a change are needed")
		}
	}
	return list, nil
}

// names returns the names of m's tests.
func (m *mutant) names() []string { return testName.FindAllString(m.tests, -1) }

// load reads the list below root, and makes its changes. Stale is why some mutants can't
// be run: a function, what is to be changed there, or a test is gone.
func load(root string) (list []*mutant, stale map[*mutant]error, err error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(listFile)))
	if err != nil {
		return nil, nil, err
	}
	if list, err = parse(string(text)); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", listFile, err)
	}
	p, stale := newProgram(root), map[*mutant]error{}
	for _, m := range list {
		var err error
		if m.files, err = p.mutate(m); err == nil {
			err = m.tested(root)
		}
		if err != nil {
			stale[m] = err
		}
	}
	return list, stale, nil
}

// tested checks that m's tests are in its package.
func (m *mutant) tested(root string) error {
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(m.pkg), "*_test.go"))
	var all []byte
	for _, file := range files {
		source, rerr := os.ReadFile(file)
		all, err = append(all, source...), errors.Join(err, rerr)
	}
	for _, name := range m.names() {
		if !bytes.Contains(all, []byte("\nfunc "+name+"(")) {
			err = errors.Join(err, fmt.Errorf("no %s in %s", name, m.pkg))
		}
	}
	return err
}
