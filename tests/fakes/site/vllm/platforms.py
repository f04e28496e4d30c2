"""The one question that is asked of vLLM's platform."""


class _Cpu:
    @staticmethod
    def is_cpu() -> bool:
        return True


current_platform = _Cpu()
