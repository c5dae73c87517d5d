package pack_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/pack"
	"takt/store"
)

func TestFacts(t *testing.T) {
	t.Parallel()
	const id, other = "0123456789abcdef0123456789abcdef01234567", "76543210fedcba9876543210fedcba9876543210"
	yes, no := true, false
	tests := []struct {
		name   string
		commit *pack.Commit
		env    string
		want   store.Facts
	}{
		{"nothing", nil, "BRANCH_NAME=x GITHUB_SHA=" + id, store.Facts{}},
		{"git", &pack.Commit{ID: id, Branch: "main", Remote: "https://me:secret@example.com/a.git", Dirty: true}, "", store.Facts{Commit: id, Branch: "main", Dirty: &yes, Remote: "https://example.com/a.git"}},
		{"no commit yet", &pack.Commit{Branch: "main", Dirty: true}, "", store.Facts{Branch: "main"}},
		{"git wins", &pack.Commit{ID: id, Branch: "main"}, "GITHUB_ACTIONS=true GITHUB_REF_NAME=7/merge GITHUB_SHA=" + other, store.Facts{Commit: id, Branch: "main", Dirty: &no}},
		{"a pull request at GitHub", &pack.Commit{ID: id}, "GITHUB_ACTIONS=true GITHUB_HEAD_REF=fix GITHUB_REF_NAME=7/merge GITHUB_SHA=" + id, store.Facts{Commit: id, Branch: "fix", Dirty: &no}},
		{
			"GitHub without git", nil, "GITHUB_ACTIONS=true GITHUB_HEAD_REF= GITHUB_REF_NAME=main GITHUB_SHA=" + id + " GITHUB_SERVER_URL=https://github.com GITHUB_REPOSITORY=a/b",
			store.Facts{Commit: id, Branch: "main", Remote: "https://github.com/a/b"},
		},
		{"GitLab", nil, "GITLAB_CI=true CI_COMMIT_REF_NAME=main CI_COMMIT_SHA=" + id + " CI_PROJECT_URL=https://gitlab.com/a/b", store.Facts{Commit: id, Branch: "main", Remote: "https://gitlab.com/a/b"}},
		{"a merge request at GitLab", nil, "GITLAB_CI=true CI_MERGE_REQUEST_SOURCE_BRANCH_NAME=fix CI_COMMIT_REF_NAME=refs/merge-requests/1/head", store.Facts{Branch: "fix"}},
		{"Jenkins", nil, "JENKINS_URL=https://ci GIT_BRANCH=origin/feature/x GIT_COMMIT=" + id + " GIT_URL=git@example.com:a/b.git", store.Facts{Commit: id, Branch: "feature/x", Remote: "git@example.com:a/b.git"}},
		{"Azure", nil, "TF_BUILD=True BUILD_SOURCEBRANCH=refs/heads/main BUILD_SOURCEVERSION=" + id, store.Facts{Commit: id, Branch: "main"}},
		{"Buildkite", nil, "BUILDKITE=true BUILDKITE_BRANCH=main BUILDKITE_COMMIT=HEAD BUILDKITE_REPO=ssh://git@example.com/a", store.Facts{Branch: "main", Remote: "ssh://git@example.com/a"}},
		{"Woodpecker", nil, "CI_PIPELINE_URL=https://ci CI_COMMIT_BRANCH=main CI_COMMIT_SHA=" + id, store.Facts{Commit: id, Branch: "main"}},
		{"a branch that is none", nil, "CIRCLECI=true CIRCLE_BRANCH=" + strings.Repeat("x", 256), store.Facts{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{}
			for v := range strings.FieldsSeq(tt.env) {
				name, value, _ := strings.Cut(v, "=")
				env[name] = value
			}
			require.Equal(t, tt.want, pack.Facts(tt.commit, func(name string) string { return env[name] }))
		})
	}
}
