package postgres_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// Every constant named sql… is prepared against the migrated schema, so a typo is
// found before its method is called, and begins with its name, by which metrics and
// traces call it.
func TestEveryStatementIsValid(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	conn, err := pgx.ConnectConfig(t.Context(), db.Config)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	statements := stringConstants(t)
	n := 0
	for name, sql := range statements {
		if strings.HasPrefix(name, "sql") {
			n++
			require.True(t, strings.HasPrefix(sql, "/* "+snake(name[len("sql"):])+" */"), "%s does not begin with its name", name)
			_, err := conn.Prepare(t.Context(), name, sql)
			require.NoError(t, err, "%s:\n%s", name, sql)
		}
	}
	require.Greater(t, n, 20, "the constants were found")
}

// snake returns a Go name in lower case, with an underscore before each word.
func snake(name string) string {
	return strings.ToLower(regexp.MustCompile(`(.)([A-Z])`).ReplaceAllString(name, "${1}_$2"))
}

// stringConstants evaluates this package's string constants.
func stringConstants(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	exprs := map[string]ast.Expr{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.CONST {
				continue
			}
			for _, spec := range gen.Specs {
				value, ok := spec.(*ast.ValueSpec)
				for i := range value.Names {
					if ok && i < len(value.Values) {
						exprs[value.Names[i].Name] = value.Values[i]
					}
				}
			}
		}
	}
	constants := map[string]string{}
	for name, expr := range exprs {
		if s, ok := evaluate(expr, exprs); ok {
			constants[name] = numbered(s)
		}
	}
	return constants
}

// numbered gives named arguments numbers, as pgx does.
func numbered(sql string) string {
	names := map[string]string{}
	return regexp.MustCompile(`@[a-z_]+`).ReplaceAllStringFunc(sql, func(name string) string {
		if names[name] == "" {
			names[name] = "$" + strconv.Itoa(len(names)+1)
		}
		return names[name]
	})
}

// evaluate returns the value of a string literal, a constant or a sum of them.
func evaluate(expr ast.Expr, names map[string]ast.Expr) (string, bool) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		return evaluate(names[e.Name], names)
	case *ast.BinaryExpr:
		left, ok1 := evaluate(e.X, names)
		right, ok2 := evaluate(e.Y, names)
		return left + right, ok1 && ok2 && e.Op == token.ADD
	}
	return "", false
}
