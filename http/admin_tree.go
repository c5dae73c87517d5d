package http

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// handleAdminTree handles GET /admin/tree: the whole tree, and
// GET /admin/tree/*: the node of that path, ids from the root.
func (s *Server) handleAdminTree(_ context.Context, c echo.Context) error {
	root := s.deps.Tree(c.QueryParam("children") == "all")
	node := findNode(&root, absolute(&root, c.Param("*")))
	if node == nil {
		return store.NewError(store.NotFound, "No such process")
	}
	return s.reply(c, http.StatusOK, node)
}

// absolute completes a path that leaves out the root's id.
func absolute(root *api.TreeNode, path string) string {
	path = strings.Trim(path, "/")
	if path == root.Path || strings.HasPrefix(path, root.Path+"/") {
		return path
	}
	return strings.TrimSuffix(root.Path+"/"+path, "/")
}

// findNode finds the node of path in the tree under n; nil if there is none.
func findNode(n *api.TreeNode, path string) *api.TreeNode {
	if n.Path == path {
		return n
	}
	if !strings.HasPrefix(path, n.Path+"/") {
		return nil
	}
	for i := range n.Children {
		if found := findNode(&n.Children[i], path); found != nil {
			return found
		}
	}
	return nil
}
