package deployment_test

import (
	"context"
	"errors"
	"runtime"

	"takt/actors/deployment/forge"
)

// perform plays one behaviour.
func (f *fakeForge) perform(ctx context.Context, act behaviour) (forge.Copied, error) {
	switch act {
	case succeeds:
	case fails:
		return forge.Copied{}, &forge.Error{Message: "the forge says no"}
	case breaks:
		return forge.Copied{}, errors.New("a defect")
	case panics:
		panic("a defect")
	case hangs:
		<-f.release
		return forge.Copied{}, nil
	case waits:
		<-ctx.Done()
		return forge.Copied{}, context.Cause(ctx)
	case exits:
		runtime.Goexit()
	case loses:
		return forge.Copied{Refs: forge.Refs{"refs/heads/main": "1"}}, nil
	}
	return forge.Copied{}, nil
}
