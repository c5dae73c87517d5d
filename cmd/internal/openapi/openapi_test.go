package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestTheDocumentIsCurrent(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..")
	want, err := Document(root)
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(root, "http", "openapi.yaml"))
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "http/openapi.yaml is stale: make docs")
}

func TestReferencesAndComponentsBelongTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, fault string }{
		"a reference without a component": {`{a: {$ref: '#/components/schemas/A'}, components: {schemas: {}}}`, "#/components/schemas/A does not exist"},
		"a component without a reference": {`{components: {headers: {B: {}}}}`, "nothing refers to #/components/headers/B"},
		"both":                            {`{a: [{$ref: '#/components/schemas/A'}], components: {schemas: {A: {}}}}`, ""},
	} {
		var doc yaml.Node
		require.NoError(t, yaml.Unmarshal([]byte(c.text), &doc))
		err := resolve(doc.Content[0], at(doc.Content[0], "components"))
		if c.fault == "" {
			require.NoError(t, err, name)
		} else {
			require.EqualError(t, err, c.fault, name)
		}
	}
}
