package cluster

// object is what is written as JSON.
type object = map[string]any

// kubeletConfig is the KubeletConfiguration.
func (n *Node) kubeletConfig() object {
	return object{
		"apiVersion":         "kubelet.config.k8s.io/v1beta1",
		"kind":               "KubeletConfiguration",
		"authentication":     object{"anonymous": object{"enabled": false}, "webhook": object{"enabled": false}, "x509": object{"clientCAFile": n.cluster.path("ca.crt")}},
		"authorization":      object{"mode": "AlwaysAllow"}, // only the API server has a certificate
		"clusterDomain":      Domain,
		"clusterDNS":         n.clusterDNS,
		"registerWithTaints": n.taints,
		"resolvConf":         "/etc/resolv.conf",
		"cgroupRoot":         "/" + n.cluster.cgroup + "/" + n.Name,
		"cgroupDriver":       "cgroupfs",
		"failCgroupV1":       false,
		"failSwapOn":         false,
		// Nothing here bounds what is left for the machine's own programs.
		"enforceNodeAllocatable":   []string{},
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
		"volumePluginDir":          "/var/lib/kubelet/volume-plugins",
		// The disk is the machine's: pods are not to suffer for how full it is, short of
		// the end.
		"evictionHard":                object{"memory.available": "64Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		// Lowering it takes rights that root doesn't have everywhere.
		"oomScoreAdj": 0,
	}
}

// proxyConfig is the KubeProxyConfiguration.
func (n *Node) proxyConfig() object {
	ranges := podRange4
	if n.cluster.options.DualStack {
		ranges += "," + podRange6
	}
	return object{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"mode":             n.cluster.options.Proxy,
		"clientConnection": object{"kubeconfig": n.cluster.kubeconfig(proxy)},
		"clusterCIDR":      ranges,
		"oomScoreAdj":      0,
		// Their limits are the whole machine's, which is not the node's to set.
		"conntrack": object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
}
