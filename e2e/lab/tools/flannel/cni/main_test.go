package main

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestDelegate(t *testing.T) {
	const env = `FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.2.1/24
FLANNEL_IPV6_NETWORK=fd00:244::/48
FLANNEL_IPV6_SUBNET=fd00:244:0:2::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
`
	c := config{CNIVersion: "1.0.0", Name: "cbr0", Delegate: map[string]any{"hairpinMode": true, "isDefaultGateway": true}}
	got, err := delegate(c, env)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"cniVersion": "1.0.0", "name": "cbr0", "type": "bridge", "isGateway": true, "ipMasq": false, "mtu": 1450,
		"hairpinMode": true, "isDefaultGateway": true,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.2.0/24"}], [{"subnet": "fd00:244:0:2::/64"}]],
			"routes": [{"dst": "10.244.0.0/16"}, {"dst": "fd00:244::/48"}]}}`
	var have, expected any
	if err := json.Unmarshal(got, &have); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &expected); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(have, expected) {
		t.Errorf("got %s", got)
	}
	if _, err := delegate(c, "FLANNEL_MTU=1450\n"); err == nil {
		t.Error("a node without a subnet got a configuration")
	}
}
