package wire

import (
	"encoding/json"
	"testing"
)

func TestConflist(t *testing.T) {
	var list struct {
		Plugins []struct {
			IPAM struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	if err := json.Unmarshal([]byte(Conflist(NewPlan("cp", "w1")[1].Pods())), &list); err != nil {
		t.Fatal(err)
	}
	ranges := list.Plugins[0].IPAM.Ranges
	if len(ranges) != 2 || ranges[0][0].Subnet != "10.244.11.0/24" || ranges[1][0].Subnet != "fd00:244:0:11::/64" {
		t.Errorf("ranges %v, want the pods of w1", ranges)
	}
}
