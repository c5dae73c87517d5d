package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"takt/cmd/internal/must"
)

// comments are the comments of types and fields, by the type's path and name, and the
// field's name after a dot.
type comments map[string]string

// packages are those whose types are in replies and requests.
var packages = []string{"http/api", "store"}

func readComments(root string) comments {
	all := comments{}
	for _, pkg := range packages {
		for _, name := range must.Get(filepath.Glob(filepath.Join(root, pkg, "*.go"))) {
			file := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution))
			for _, d := range file.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
					all.add("takt/"+pkg, g)
				}
			}
		}
	}
	return all
}

func (c comments) add(pkg string, g *ast.GenDecl) {
	for _, s := range g.Specs {
		t := s.(*ast.TypeSpec) // a declaration of types
		doc := t.Doc
		if doc == nil {
			doc = g.Doc
		}
		name := pkg + "." + t.Name.Name
		c[name] = doc.Text()
		fields, ok := t.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range fields.Fields.List {
			text := f.Doc.Text()
			if text == "" {
				text = f.Comment.Text()
			}
			for _, n := range f.Names {
				c[name+"."+n.Name] = text
			}
		}
	}
}

var (
	goWord = regexp.MustCompile(`[\w.-]*\b[A-Z]\w*\b`) // with what it is only a part of
	link   = regexp.MustCompile(`\[([\w.]+)\]`)
	hole   = regexp.MustCompile(`/:(\w+)`)
)

// of returns the comment of a type, or of its field, in the words of the interface: fields
// are called as in JSON.
func (c comments) of(t reflect.Type, field, called string) string {
	key := t.PkgPath() + "." + t.Name()
	if field != "" {
		key += "." + field
	}
	text := link.ReplaceAllString(strings.Join(strings.Fields(c[key]), " "), "$1")
	text = hole.ReplaceAllString(text, "/{$1}")
	names := map[string]string{}
	if t.Kind() == reflect.Struct {
		for _, f := range reflect.VisibleFields(t) {
			if name := wireName(f); name != "" {
				names[f.Name] = "`" + name + "`"
			}
		}
	}
	first := true
	return goWord.ReplaceAllStringFunc(text, func(word string) string {
		start := first
		first = false
		switch {
		case field == "" && start && word == t.Name():
			return called
		case names[word] != "" && (field != "" || !start):
			return names[word]
		}
		return word
	})
}

// wireName is what a field is called in a request or reply; "" if it isn't in one.
func wireName(f reflect.StructField) string {
	for _, tag := range [...]string{"json", "path", "query", "header", "form"} {
		if v, ok := f.Tag.Lookup(tag); ok {
			name, _, _ := strings.Cut(v, ",")
			switch name {
			case "*":
				return "path"
			case "-":
				return ""
			}
			return name
		}
	}
	return ""
}
