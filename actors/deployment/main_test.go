package deployment_test

import (
	"testing"

	"takt/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }
